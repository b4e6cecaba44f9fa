"""Run the command as `python -m kvpacket_rag`."""

from kvpacket_rag.cli.main import main

if __name__ == "__main__":
    main()
