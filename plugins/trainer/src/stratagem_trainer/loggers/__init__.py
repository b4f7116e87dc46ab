"""Where metrics go: a CSV file, TensorBoard, or a `Logger` of one's own."""

from stratagem_trainer.loggers.base import Logger, Row
from stratagem_trainer.loggers.csv import CSVLogger
from stratagem_trainer.loggers.tensorboard import TensorBoardLogger

__all__ = ["CSVLogger", "Logger", "Row", "TensorBoardLogger"]
