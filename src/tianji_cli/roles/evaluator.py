"""Another name of ``tianji_cli.roles.actor.evaluator``, by which roles of users import it."""

from tianji_cli.roles.actor.evaluator import Evaluator

__all__ = ["Evaluator"]
