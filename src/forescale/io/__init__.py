"""Readers and writers: other tools' files, plan files, cluster files, validation at the edge."""
