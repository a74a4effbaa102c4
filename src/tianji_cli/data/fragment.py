"""Another name of ``tianji_cli.wire.fragment``, by which roles of users import it."""

from tianji_cli.wire.fragment import Fragment, FragmentLayout

__all__ = ["Fragment", "FragmentLayout"]
