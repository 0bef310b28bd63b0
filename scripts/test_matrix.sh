#!/bin/sh
# The tests of the core with several versions of Python, and with the oldest versions of dependencies that are allowed.
# uv finds interpreters here, those of pyenv too, or fetches them. PYTHONS= and TESTS= choose others; UV_FIND_LINKS and
# UV_EXTRA_INDEX_URL lead to builds of torch without GPU libraries. Says at the end what ran and what could not.
set -u
cd "$(dirname "$0")/.."
PYTHONS="${PYTHONS-3.11 3.12 3.13}"
LOWEST="${LOWEST-3.11}"
TESTS="${TESTS:-tests/unit/data tests/unit/test_kernels.py tests/unit/test_prediction.py tests/unit/estimators tests/test_imports.py}"
FOLDER="${FOLDER:-build/matrix}"
mkdir -p "$FOLDER"
summary=""
failed=0

# run NAME PYTHON OPTIONS...: an environment, the package, the tests.
run() {
    name="$1" python="$2"
    shift 2
    # On the path pyenv has shims, which refuse versions that are not chosen.
    for known in "${PYENV_ROOT:-$HOME/.pyenv}/versions/$python".*/bin/python; do
        [ -x "$known" ] && python="$known"
    done
    log="$FOLDER/$name.log"
    if ! uv venv --quiet --clear --python "$python" "$FOLDER/$name" >"$log" 2>&1; then
        summary="$summary$name: there is no such interpreter, and none could be fetched\n"
        return
    fi
    if ! uv pip install --quiet --python "$FOLDER/$name/bin/python" "$@" '.[all]' 'beartype>=0.18' 'hypothesis>=6.100' \
        'pytest>=8.2' 'pytest-xdist>=3.6' >>"$log" 2>&1; then
        summary="$summary$name: packages could not be installed, see $log\n"
        failed=1
        return
    fi
    # What other versions are about to deprecate is no failure.
    # shellcheck disable=SC2086
    "$FOLDER/$name/bin/python" -m pytest -q -m "not slow" -W default $TESTS >>"$log" 2>&1 || failed=1
    summary="$summary$name: $(tail -n 1 "$log")\n"
}

for version in $PYTHONS; do
    run "python$version" "$version" --constraint constraints.txt
done
[ -z "$LOWEST" ] || run lowest "$LOWEST" --resolution lowest-direct
printf "%b" "$summary"
exit "$failed"
