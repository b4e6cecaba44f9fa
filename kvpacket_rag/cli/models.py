"""`kvpacket models`: list the models that are known by name."""

from __future__ import annotations

from rich.table import Table

from kvpacket_rag.display.terminal import out

__all__ = ["models"]


def models() -> None:
    """List the models that are known by name. Any Hugging Face id, folder or GGUF file works as well."""
    from kvpacket_rag.engine.catalogue import CATALOGUE
    from kvpacket_rag.engine.settings import Settings

    table = Table("name", "kind", "description", "fetched")
    for entry in CATALOGUE.values():
        table.add_row(
            entry.name, entry.kind, entry.about, "yes" if (Settings().model_folder / entry.name).exists() else "no"
        )
    out.print(table)
