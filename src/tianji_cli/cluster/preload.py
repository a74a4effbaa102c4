"""What the fork server imports before it makes workers; imported nowhere else, for it changes the process.

torch alone takes 1.5 s and 146 MB, which every worker shares this way. No transport engine is among
the imports: libzmq and iceoryx2 keep threads and files that a fork would break.
"""

import signal

import gymnasium  # noqa: F401
import torch  # noqa: F401

import tianji_algos.ppo.agent
import tianji_algos.ppo.embryo  # noqa: F401
import tianji_cli.cluster.assembly  # noqa: F401

# A SIGTERM to the whole process group must reach the root, which stops the job in order. The server
# only has to be there until then: without it nobody learns how workers end.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
