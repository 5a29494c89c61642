"""`@promise("one sentence")` marks a test that holds a promise to users; the site lists them all."""

import pytest

promise = pytest.mark.promise
