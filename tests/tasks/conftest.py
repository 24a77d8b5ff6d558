"""The small vocabulary that the tests of texts have, too."""

from tests.text.conftest import vocabulary, vocabulary_path  # noqa: F401
