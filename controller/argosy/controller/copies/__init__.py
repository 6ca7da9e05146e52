"""Copies of a run's checkpoints and books on another file system: an object store, HDFS, a mounted disk.

    URL/
        files/<sha256>                          contents, each once, never changed
        copies/gen_00002.step_000000012.json    one copy: which file of the run folder has which content; written last
        writers/gen_00002.json                  who may write: whoever has the highest generation

Contents are named by their checksum, and a copy exists from the moment its list does. So a reader sees whole copies
only, at whatever point a writer dies; what two copies have in common is sent once; and a writer that wakes up late can
change nothing that is there. Each start of a run takes the next generation, and an older one is refused (FencedError).
"""

from argosy.controller.copies.copies import Copies, Copy, copies_of
from argosy.controller.copies.filesystem import RemoteFolder
from argosy.controller.copies.restore import fetch_books, restore

__all__ = ["Copies", "Copy", "RemoteFolder", "copies_of", "fetch_books", "restore"]
