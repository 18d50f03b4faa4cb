"""Between encoding and the wire: clipping, noise and integers for secure sums, as the tables [privacy] and [secure] say."""

from sketchfed.protection.protection import Protection
from sketchfed.protection.resolve import make_protection
from sketchfed.protection.settings import PrivacySettings, SecureSettings

__all__ = ["PrivacySettings", "Protection", "SecureSettings", "make_protection"]
