"""Groups of commands: names that load on use, and an unknown name that gets the list."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup


class CommandGroup(TyperGroup):
    """A group that answers an unknown command with the known ones."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name."""
        name = args[0]
        option = name.startswith("-")
        if not option and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            known = ", ".join(self.list_commands(ctx))
            ctx.fail(f"{ctx.command_path} has no command {name!r}; its commands are {known}.")
        return super().resolve_command(ctx, args)


def from_modules(package: str, names: Sequence[str]) -> type[CommandGroup]:
    """A group whose commands live in modules of the same name, imported when needed."""

    class ModuleGroup(CommandGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return list(names)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in names:
                return None
            module = importlib.import_module(f"{package}.{cmd_name}")
            command = typer.main.get_command(module.app)
            command.name = cmd_name
            return command

    return ModuleGroup
