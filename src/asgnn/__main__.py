"""Entry point of the command line; says which optional package is missing."""

import sys


def main() -> None:
    try:
        from asgnn.cli import run
    except ModuleNotFoundError as missing:
        if missing.name not in {"typer", "rich", "matplotlib"}:
            raise
        sys.exit(f'The command line needs {missing.name}; install it with: pip install "asgnn[cli]"')
    run()


if __name__ == "__main__":
    main()
