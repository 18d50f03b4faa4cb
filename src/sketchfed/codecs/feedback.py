"""Error feedback for any codec: a client keeps the error of each packet and adds it to its next vector."""

from torch import Tensor

from sketchfed.codecs.base import Codec
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


def encode_with_memory(
    codec: Codec, x: Tensor, memory: Tensor | None, seed: PublicSeed, client: int = 0
) -> tuple[Packet, Tensor]:
    """Encode x + memory, and return the packet and the new memory (Seide et al. 2014; Karimireddy et al. 2019).

    The memory is the part of earlier vectors that was lost. The server must multiply what it decodes by `codec.shrinkages`: an
    unbiased codec has an error of ω times the vector, and only 1/(1 + ω) times its output is a contraction. Without a
    contraction the memory grows from round to round. For codecs that decode all packets jointly, the decoded mean equals the
    mean of the clients' single decodings only in expectation.
    """
    wanted = x if memory is None else x + memory
    packet = codec.encode(wanted, seed, client)
    return packet, wanted - codec.shrinkages * codec.decode([packet], seed)
