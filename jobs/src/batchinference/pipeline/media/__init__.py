"""Decodes and encodes images, audio and video. Each module needs its own library."""
