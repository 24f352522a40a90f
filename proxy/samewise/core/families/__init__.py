"""The API families whose answers are cached, one file each, behind one contract."""
