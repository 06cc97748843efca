"""BatchInference: offline model inference over large data sets, configured by one YAML file."""

__version__ = "0.1.0"
