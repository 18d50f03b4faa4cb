"""What a reader must know to understand an audit: who sees what, what is claimed, and what the scores mean."""

_ROLES = (
    (
        "server",
        "Honest but curious: it follows the protocol, and looks.",
        "Every reply of every client, and the weights of the model.",
    ),
    ("network", "Reads the wire where there is no TLS.", "All requests and all replies."),
    ("client", "One of those who train.", "What one client is sent, and its own data."),
    (
        "secure server",
        "The server under secure sums.",
        "Masked replies, which look random, and the opened sums of a round.",
    ),
    ("colluders", "Two clients that work together.", "What both are sent. They pool it and subtract their own part."),
    (
        "neighbour",
        "A node of a graph, in a run without a server.",
        "What its neighbours say to it, what it says, and its own data. Nothing that passes between others.",
    ),
)

_CLAIMS = (
    (
        "ε is a bound on any attack",
        "It holds for attacks that nobody has tried yet, for the unit and the observer that its claim names. It does not hold "
        "for other units or other observers. The lower it is, the less can be learnt. Where a claim says INSECURE, others can "
        "know the noise, and it bounds nothing.",
    ),
    (
        "“Nothing found” is no proof",
        "Attacks only give lower bounds: what these did not find, another may. It does say that attacks which work on the "
        "undefended model did not work here.",
    ),
    (
        "“No power” says nothing",
        "The attack failed on the undefended model too. That it fails here is no merit of the defence.",
    ),
    (
        "Sketching is compression, not privacy",
        "Everybody who knows the seed knows the sketch. Fewer numbers are sent, and attacks search for examples that fit them.",
    ),
    (
        "DBCL hides weights from being sent, not from being inferred",
        "No client is sent the model. Clients that watch many rounds can estimate it and its steps.",
    ),
    (
        "Secure sums hide single replies, not what the sum tells",
        "The server learns the sum, and whatever follows from it. The fewer clients are in it, the more follows for each.",
    ),
    (
        "The adversary is assumed to know a lot",
        "It knows the model, how many examples a client trains on, and all seeds that are public. Not knowing these may make "
        "an attack harder. Do not count on it.",
    ),
    (
        "Updates of a single example are the worst case by design",
        "They show what an attack can do at best. Larger batches make reconstruction harder. That is not a defence either.",
    ),
)

_READING = (
    (
        "PSNR, in dB",
        "How close a guess is to its original; higher is closer. At 10 dB the error is a third of the way from black to white: "
        "blotches, perhaps an outline. At 20 dB it is a tenth: grainy, but easy to recognise. At 30 dB it is 3 %: hard to tell "
        "from the original. More than 100 dB is shown as 100. Chance is the mean image of public data: whoever has seen "
        "nothing can guess that, so only what is above it was learnt.",
    ),
    (
        "Cosine",
        "How well an estimate of the server's step points the same way as the step: 1 is the same direction, 0 is chance.",
    ),
    (
        "AUC",
        "How often an attack ranks a case that has the property, or that was in the training data, above one that has not or "
        "was not: 1 is always, 0.5 is chance.",
    ),
    (
        "Intervals",
        "Below a score stands its interval of 95 %. If chance lies inside it, the score may be luck.",
    ),
    (
        "Recognised",
        "The share of guesses that a nearest-neighbour classifier takes for what they are. It is not the model under attack. "
        "“Originals recognised” is the same for the originals: no guess can be expected to do better.",
    ),
    (
        "Other scores",
        "SSIM compares structure: 1 is equal. Mean square error is what PSNR is computed from. “Labels found” is the share of "
        "labels that were guessed. “True positive rate” is the share of members that were found with few false alarms. "
        "“Privacy loss at least” is the least loss that fits how often the attack was right. It bounds the loss from below; a "
        "claim bounds it from above.",
    ),
)


def who_sees_what() -> str:
    rows = "".join(f'<tr><th scope="row">{role}</th><td>{who}</td><td>{sees}</td></tr>\n' for role, who, sees in _ROLES)
    return f"""<h2 id="roles">Who sees what</h2>
<div class="scroll" role="region" tabindex="0" aria-labelledby="roles">
<table class="roles">
<thead><tr><th scope="col">role</th><th scope="col">who it is</th><th scope="col">what it sees</th></tr></thead>
<tbody>
{rows}</tbody>
</table>
</div>"""


def claims() -> str:
    return f'<h2>What each claim is and is not</h2>\n<dl class="terms">\n{_terms(_CLAIMS)}</dl>'


def how_to_read() -> str:
    return f'<h2>How to read it</h2>\n<dl class="terms">\n{_terms(_READING)}</dl>'


def _terms(terms: tuple[tuple[str, str], ...]) -> str:
    return "".join(f"<dt>{term}</dt><dd>{meaning}</dd>\n" for term, meaning in terms)
