"""Error of an exported file where it chooses another action than the policy."""

import numpy as np

from tianji_cli.worker.comparison import missed_by, regret

LOGITS = np.log(np.array([[0.5, 0.25, 0.25]], np.float32)).repeat(4, axis=0)


def test_an_action_is_off_by_how_much_lower_it_is_scored() -> None:
    scores = np.array([[1.0, 1.0, -1e9], [0.5, 0.25, 0.0], [-500.0, -501.0, -600.0]], np.float32)
    np.testing.assert_allclose(regret(np.array([1, 1, 1]), scores), [0.0, 0.25, 0.002], rtol=1e-5)


def test_a_draw_is_off_by_how_far_it_is_from_the_noise() -> None:
    luck = np.array([0.5, 0.25, 0.8, 0.0], np.float32)
    off = missed_by(np.array([0, 0, 1, 2]), LOGITS, luck)
    np.testing.assert_allclose(off, [0.0, 0.0, 0.05, 0.75], atol=1e-6)
    np.testing.assert_allclose(
        missed_by(np.array([1, 1, 2, 0]), LOGITS, luck), [0.0, 0.25, 0.0, 0.0], atol=1e-6
    )
