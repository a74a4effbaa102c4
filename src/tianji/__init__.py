"""TianJi from Python: train, read the results of a run, and act with its policy.

    import tianji

    run = tianji.train("configs/ppo_cartpole.toml", experiment={"seed": 3})
    print(run.summary["returns"]["best_mean_100"], run.metrics["env_steps"][-1])
    policy = tianji.load(run)
    action = policy.act(observation)

Failures raise a ``TianjiError``. Importing this package imports no torch.
"""

from tianji.policy import ObservationError, Policy, load
from tianji.program import Program
from tianji.runs import Run, train
from tianji_cli.errors import TianjiError

__all__ = ["ObservationError", "Policy", "Program", "Run", "TianjiError", "load", "train"]
