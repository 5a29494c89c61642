"""The run folder: files of whole lines, and the newest entries for those who look on."""
