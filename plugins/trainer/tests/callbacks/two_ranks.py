"""One of two real ranks over gloo whose metrics differ: `two_ranks.py RANK PORT FOLDER`."""

import json
import sys
from datetime import timedelta
from types import SimpleNamespace

import torch
from fake_trainer import FakeTrainer
from stratagem_trainer.callbacks import EarlyStopping, ModelCheckpoint

from stratagem.collectives.process_group import ProcessGroupCollectives
from stratagem.errors import ConfigError


def main(rank: int, port: int, folder: str) -> None:
    place = SimpleNamespace(
        global_rank=rank,
        local_rank=rank,
        node_rank=0,
        world_size=2,
        main_address="127.0.0.1",
        main_port=port,
        store_is_served=True,
        store_file=None,
        run_secret=None,
        attempt=0,
    )
    collectives = ProcessGroupCollectives(place, torch.device("cpu"), "gloo", timedelta(seconds=120))
    checkpoint = ModelCheckpoint(
        monitor="val_loss", save_top_k=2, auto_insert_metric_name=False, filename="{epoch}-{val_loss:.1f}"
    )
    stopping = EarlyStopping("val_loss", patience=2)
    trainer = FakeTrainer(folder, [checkpoint, stopping], collectives)
    # Rank 1 alone would rank them the other way round, and never stop.
    losses = [3.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    trainer.fit(*({"val_loss": loss if rank == 0 else 10.0 - epoch} for epoch, loss in enumerate(losses)))

    typo = FakeTrainer(folder, [ModelCheckpoint(monitor="val_los", dirpath="typo")], collectives)
    try:
        # Rank 1 has logged it, which doesn't count.
        typo.fit({"val_loss": 1.0} if rank == 0 else {"val_los": 1.0})
        error = ""
    except ConfigError as refused:
        error = str(refused)
    collectives.barrier("both are here")
    print(
        json.dumps(
            {
                "best": checkpoint.best_model_path,
                "score": checkpoint.best_model_score,
                "kept": [entry.path for entry in checkpoint.kept],
                "events": trainer.events,
                "stopped": [trainer.should_stop, stopping.stopped_epoch],
                "error": error,
            }
        )
    )
    collectives.close()


main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
