"""`python -m manygp` is the `manygp` command."""

from manygp.cli import main

if __name__ == "__main__":
    main()
