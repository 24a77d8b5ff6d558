"""Folders of decodes as files of other benchmarks and servers."""
