"""Images, audio and video, decoded and encoded. Each module needs a library of its own."""
