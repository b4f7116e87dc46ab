"""Lightning's names and default values, for Stratagem: `import stratagem_lightning as L`.

Submodules are `stratagem_lightning.pytorch`, `stratagem_lightning.fabric` and those below them, as in Lightning's
documentation. names.py is the complete table. Importing a name that isn't here raises an error with the reason.
"""

from __future__ import annotations

from stratagem_lightning.finder import install, names_of
from stratagem_lightning.rank_zero import show_rank

install()
show_rank()
__getattr__, __dir__, __all__ = names_of(__name__)
