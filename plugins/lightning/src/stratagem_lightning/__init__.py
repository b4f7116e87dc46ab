"""The names and values of Lightning, mapped onto Stratagem: `import stratagem_lightning as L`.

Submodules are `stratagem_lightning.pytorch`, `stratagem_lightning.fabric` and those below them, as Lightning's
documentation has them: names.py is the whole table. A name that isn't here says why when it is imported.
"""

from __future__ import annotations

from stratagem_lightning.finder import install, names_of
from stratagem_lightning.rank_zero import show_rank

install()
show_rank()
__getattr__, __dir__, __all__ = names_of(__name__)
