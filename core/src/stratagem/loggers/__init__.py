"""Where metrics go: a CSV file, TensorBoard, or a `Logger` of one's own."""

from stratagem.loggers.base import Logger, Row
from stratagem.loggers.csv import CSVLogger
from stratagem.loggers.tensorboard import TensorBoardLogger

__all__ = ["CSVLogger", "Logger", "Row", "TensorBoardLogger"]
