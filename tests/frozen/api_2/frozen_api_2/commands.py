"""A command."""

import click


@click.command()
@click.option("--degrees", default=1, help="By how many.")
def thaw(degrees):
    """Thaw."""
    click.echo(f"thawed by {degrees}")
