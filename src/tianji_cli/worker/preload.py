"""What the fork server imports before it makes workers.

torch alone takes 1.5 s and 146 MB, which every worker shares this way. No transport engine is among
the imports: libzmq and iceoryx2 keep threads and files that a fork would break.
"""

import gymnasium  # noqa: F401
import torch  # noqa: F401

from tianji_transports import registry

registry.names()  # It asks all installed packages, once.
