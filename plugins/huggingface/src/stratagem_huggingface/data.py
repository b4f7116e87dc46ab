"""`HFData`: a dataset of Hugging Face's datasets, as a data module."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import datasets
import transformers
from stratagem_trainer import DataModule
from torch.utils.data import DataLoader

from stratagem.errors import ConfigError, DataError, nearest

_SPLITS: Mapping[str, Sequence[str]] = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev", "eval"),
    "test": ("test",),
}
"""Name of a split → names that datasets have for it."""


class HFData(DataModule):
    """Tokenized data: training, validation and test splits, collated as transformers' Trainer does.

    Columns of texts are left out, because a collator can't make tensors of them. Predictions are of the test split,
    or else of the validation.

    Args:
        dataset: a folder of `save_to_disk`, a name of the Hub, a `Dataset`, an `IterableDataset`, or a mapping
            from splits to these.
        batch_size: samples per training batch and process.
        eval_batch_size: the same for evaluations; `batch_size` when None.
        collator: a function from samples to a batch; or the name of a class of transformers, which is made with the
            tokenizer. When None, `default_data_collator` of transformers, or `DataCollatorWithPadding` with a
            tokenizer.
        collator_options: further arguments of a collator by name, such as {"mlm": False}.
        tokenizer: of transformers, or a folder from which it is loaded.
        num_workers: processes per loader.

    Raises:
        ConfigError: an unknown collator, or one that needs a tokenizer.
        DataError: there is no such dataset.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 8,
        eval_batch_size: int | None = None,
        collator: str | Callable[[list[Any]], Any] | None = None,
        collator_options: Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        num_workers: int = 0,
    ) -> None:
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size or batch_size
        self.num_workers = num_workers
        if isinstance(tokenizer, (str, os.PathLike)):
            tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer)
        self.collate = _collator(collator, collator_options or {}, tokenizer)
        self.splits = _splits(_loaded(dataset) if isinstance(dataset, (str, os.PathLike)) else dataset)

    def train_dataloader(self) -> Any:
        """Return batches of the split "train", shuffled where it has an order."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> Any:
        """Return batches of the split "validation"; None without one."""
        return self._loader("validation")

    def test_dataloader(self) -> Any:
        """Return batches of the split "test"; None without one."""
        return self._loader("test")

    def predict_dataloader(self) -> Any:
        """Return batches of the split "test", or else "validation"."""
        return self._loader("test" if "test" in self.splits else "validation")

    def _loader(self, split: str, shuffle: bool = False) -> Any:
        if split not in self.splits:
            return None
        data = self.splits[split]
        return DataLoader(
            data,
            self.batch_size if split == "train" else self.eval_batch_size,
            shuffle=shuffle and isinstance(data, datasets.Dataset),
            collate_fn=self.collate,
            num_workers=self.num_workers,
        )


def _loaded(path: str | os.PathLike[str]) -> Any:
    try:
        if os.path.isdir(path):
            return datasets.load_from_disk(os.fspath(path))
        return datasets.load_dataset(os.fspath(path))
    except (
        Exception
    ) as error:  # datasets raises errors of its own, of the Hub, of fsspec and of the file system
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"hf:{os.fspath(path)} can't be read as a dataset: {reason}; give a folder of save_to_disk, or a name of "
            "the Hub"
        ) from error


def _splits(given: Any) -> dict[str, Any]:
    """Return our name of a split → its data, without columns of texts."""
    if isinstance(given, (datasets.Dataset, datasets.IterableDataset)):
        given = {"train": given}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"HFData got dataset={type(given).__name__}: pass a Dataset, a mapping from splits to these, or a folder"
        )
    found = {}
    for name, others in _SPLITS.items():
        for other in others:
            if other in given:
                found[name] = _without_texts(given[other])
                break
    if not found:
        raise DataError(
            f"HFData got the splits {', '.join(map(str, given)) or 'none'}: one must be called train, validation or "
            "test"
        )
    return found


def _without_texts(data: Any) -> Any:
    types = {name: getattr(feature, "dtype", None) for name, feature in (data.features or {}).items()}
    texts = [name for name, kind in types.items() if kind in ("string", "large_string")]
    return data.remove_columns(texts) if texts else data


def _collator(given: Any, options: Mapping[str, Any], tokenizer: Any) -> Callable[[list[Any]], Any]:
    if given is None and tokenizer is None:
        default: Callable[[list[Any]], Any] = transformers.default_data_collator
        return default
    if callable(given):
        return given  # type: ignore[no-any-return]  # the user's function
    name = given or "DataCollatorWithPadding"
    known = [each for each in dir(transformers) if each.startswith("DataCollator")]
    if name not in known:
        raise ConfigError(f"HFData got collator={name!r}: {nearest(str(name), known)}; or pass a function")
    make = getattr(transformers, name)
    try:
        made: Callable[[list[Any]], Any] = make(
            **({} if tokenizer is None else {"tokenizer": tokenizer}), **options
        )
    except TypeError as error:
        raise ConfigError(
            f"HFData can't make collator={name!r}: {error}; give its tokenizer and collator_options"
        ) from error
    return made
