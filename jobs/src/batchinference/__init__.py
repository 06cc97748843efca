"""BatchInference: offline model inference over large data sets, from one YAML file."""

__version__ = "0.1.0"
