#!/bin/sh
# Chromium from Debian or Ubuntu, and the package that drives it, for the tests of reports in a browser.
set -e
run() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
run apt-get update
run apt-get install --yes --no-install-recommends chromium
"${PYTHON:-.venv/bin/python}" -m pip install --constraint constraints.txt playwright
