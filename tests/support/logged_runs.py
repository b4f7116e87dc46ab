"""Runs with a logger: what tests of loggers share."""

from callback_nets import Net, trainer


class Logs(Net):
    """Asks for the library's own object on every rank."""

    def on_train_start(self):
        self.print_kind = type(self.trainer.loggers[0].experiment).__name__
        if self.trainer.global_rank:
            assert self.trainer.loggers[0].experiment.anything("at all").works


class Evaluated(Net):
    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.loss(batch))

    test_dataloader = Net.train_dataloader


def run_of(logger, folder, strategy="single", devices=1, module=None):
    module = Logs(8 // devices) if module is None else module
    trainer(strategy, folder, devices=devices, logger=logger, log_every_n_steps=1, max_epochs=1).fit(module)


def fitted_and_tested(logger, folder, devices):
    strategy = "ddp" if devices > 1 else "single"
    run = trainer(strategy, folder, devices=devices, logger=logger, log_every_n_steps=1, max_epochs=1)
    module = Evaluated(8 // devices)
    run.fit(module)
    version = logger.version
    run.test(module)
    assert logger.version == version
    assert version is not None
    return version
