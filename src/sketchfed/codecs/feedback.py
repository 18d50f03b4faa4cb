"""Error feedback around any codec: a client keeps what did not get across and adds it to what it sends next."""

from torch import Tensor

from sketchfed.codecs.base import Codec
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


def encode_with_memory(
    codec: Codec, x: Tensor, memory: Tensor | None, seed: PublicSeed, client: int = 0
) -> tuple[Packet, Tensor]:
    """The packet of x and all that is owed from before, and what is owed after it (Seide et al. 2014; Karimireddy et al. 2019).

    The server multiplies what it decodes by `codec.shrinkage`: an unbiased codec loses ω times what it sends, and only
    1/(1 + ω) of it is a contraction, without which the memory grows from round to round. Codecs that decode all packets
    jointly give the mean of what clients got across in expectation only, not each time.
    """
    wanted = x if memory is None else x + memory
    packet = codec.encode(wanted, seed, client)
    return packet, wanted - codec.shrinkage * codec.decode([packet], seed)
