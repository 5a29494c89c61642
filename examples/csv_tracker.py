"""A tracker: a CSV file with a line per point and metric. The same three methods feed any experiment tracker.

ps-lab run examples/digits-async.toml --tracker examples/csv_tracker.py:CsvTracker
"""

import csv


class CsvTracker:
    def start(self, run):
        self.file = (run.folder / "metrics.csv").open("w", newline="")
        self.lines = csv.writer(self.file)
        self.lines.writerow(["version", "seconds", "metric", "value"])

    def log(self, metrics, version, seconds):
        for name, value in metrics.items():
            self.lines.writerow([version, seconds, name, value])

    def finish(self, summary):
        self.file.close()
