#!/bin/sh
# The tests of the core with every Python that there is, or that uv can get, and with the oldest versions allowed.
# Needs uv. TESTS= names other tests, PYTHONS= other versions. Says at the end what ran and what could not.
set -u
cd "$(dirname "$0")/.."
PYTHONS="${PYTHONS:-3.11 3.12 3.13}"
TESTS="${TESTS:-tests/unit/data tests/unit/test_kernels.py tests/unit/test_prediction.py tests/unit/estimators/test_estimator.py tests/unit/estimators/test_ways_in.py tests/test_imports.py}"
TOOLS="beartype hypothesis pytest pytest-xdist"
folder="${MATRIX:-build/matrix}"
mkdir -p "$folder"
summary=""
failed=0

# name, version of Python, and how uv is to resolve.
run() {
    name="$1" python="$2" && shift 2
    log="$folder/$name.log"
    if ! uv venv --quiet --clear --python "$python" "$folder/$name" >"$log" 2>&1; then
        summary="$summary\n$name: no such interpreter here, and none could be fetched"
        return
    fi
    # shellcheck disable=SC2086
    if ! uv pip install --quiet --python "$folder/$name/bin/python" "$@" '.[all]' $TOOLS >>"$log" 2>&1; then
        summary="$summary\n$name: packages could not be installed, see $log"
        return
    fi
    # Warnings of other versions are theirs to deprecate.
    # shellcheck disable=SC2086
    "$folder/$name/bin/python" -m pytest -q -m "not slow" -W default $TESTS >>"$log" 2>&1
    code=$?
    [ "$code" = 0 ] || failed=1
    summary="$summary\n$name: $(tail -n 1 "$log")"
}

for python in $PYTHONS; do
    run "python$python" "$python"
done
run lowest "$(echo "$PYTHONS" | cut -d ' ' -f 1)" --resolution lowest-direct
printf "%b\n" "$summary"
exit "$failed"
