"""Recognise handwritten digits, with a configuration that Hydra composes from conf/. Needs `pip install hydra-core`.

python examples/hydra_digits.py
python examples/hydra_digits.py model=large strategy=ddp devices=2 trainer.max_epochs=10
python examples/hydra_digits.py --multirun model=small,large model.lr=0.001,0.01
"""

from __future__ import annotations

from functools import partial

import hydra
from digits import Digits
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

import stratagem


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> float:
    """Train once; returns what sweepers of Hydra minimise."""
    settings = OmegaConf.to_container(config, resolve=True)
    strategy = settings["strategy"]
    trainer = stratagem.Trainer(
        strategy=strategy.pop("name"),
        strategy_options=strategy,
        accelerator=settings["accelerator"],
        devices=settings["devices"],
        seed=settings["seed"],
        run_dir=HydraConfig.get().runtime.output_dir,
        **settings["trainer"],
    )
    trainer.fit(partial(Digits, **settings["model"]))  # made in each worker, after seeding
    print(f"val_loss {trainer.callback_metrics['val_loss']:.4f}, in {trainer.run_dir}")
    return trainer.callback_metrics["val_loss"]


if __name__ == "__main__":
    main()
