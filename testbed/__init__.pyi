"""The public names of the package and where each lives: read by type checkers, and by `testbed` itself."""

from testbed.api import Run as Run
from testbed.api import Series as Series
from testbed.api import compare as compare
from testbed.api import load as load
from testbed.api import run as run
from testbed.codecs import CODECS as CODECS
from testbed.codecs import ErrorFeedback as ErrorFeedback
from testbed.codecs import Float32 as Float32
from testbed.codecs import codec as codec
from testbed.codecs.base import Codec as Codec
from testbed.errors import InputError as InputError
from testbed.errors import RunError as RunError
from testbed.errors import TestbedError as TestbedError
from testbed.experiment.schema import Experiment as Experiment
from testbed.fabrics.base import Fabric as Fabric
from testbed.fabrics.registry import FabricKind as FabricKind
from testbed.message import Message as Message
from testbed.report.pictures import picture as picture
from testbed.roles import Node as Node
from testbed.roles import Work as Work
from testbed.roles.compute import DEVICES as DEVICES
from testbed.roles.compute import Device as Device
from testbed.systems import Task as Task
from testbed.systems.protocols.base import Options as Options
from testbed.systems.protocols.base import System as System
from testbed.systems.protocols.codec_system import CodecSystem as CodecSystem
from testbed.wan.profile import PROFILES as PROFILES
from testbed.wan.profile import Link as Link
from testbed.wan.profile import Profile as Profile
from testbed.workloads import Arrays as Arrays
from testbed.workloads import DataFolder as DataFolder
from testbed.workloads import Dataset as Dataset
from testbed.workloads import Metric as Metric
from testbed.workloads import Model as Model
from testbed.workloads import Workload as Workload
from testbed.workloads import dataset as dataset
from testbed.workloads import model as model

__version__: str
