"""``import fserver_lib`` as programs for StepMesh say it, served by tensorbus.

For programs before which nobody can put ``python -m tensorbus.fserver``: a server that is started
by another framework, say. All names are those of :mod:`tensorbus.fserver`.
"""

from tensorbus.fserver import *  # noqa: F403
from tensorbus.fserver import __all__ as __all__
