# SPDX-License-Identifier: Apache-2.0
"""Whether an answer is right.

llama.cpp's numbers depend a little on how a prompt is split into batches, and what else is in a batch. So:

  - Each token that both say must have the same log probability, within the model's ROUNDING.
  - Where the tokens differ, it is looked up how likely the plain llama-server holds both. Only if they are as likely,
    within ROUNDING, that is a tie; else the token is wrong. After a tie the plain one goes on from what was really
    said, and the rest is compared with that: no token stays unchecked.

A plain llama-server of three slots, whose batches hold tokens of several prompts, moves log probabilities of qwen35 by
0.0025 at most in 6,000 tokens, by 0.0003 in the median answer; `larder serve` by 0.004 in 20,000. One page of other
tokens, anywhere in a prompt of 1,000, moved one of the next sixteen by 0.15 or more (qwen35, 32 prompts) and by 0.005
to 0.28 (gemma3, 32 prompts, where rounding stayed below 0.0013): a page, a window or a state of another prompt is
seen, also where the likeliest token is the same. Ties must be rare (report.py).
"""

import copy

ROUNDING = {"qwen35": 0.02, "gemma3": 0.004}


class Verdict:
    """wrong: None, or words. ties: where the tokens parted, both being as likely. furthest: the largest difference of a
    log probability."""

    def __init__(self, rounding):
        self.rounding = rounding
        self.wrong, self.ties, self.furthest = None, 0, 0.0


def first_parting(expected, said, verdict):
    """Place of the first token that differs, or None; fails the verdict where it is no tie, or a number is off."""
    for place, (want, got) in enumerate(zip(expected, said)):
        if got.token not in want.top:
            verdict.wrong = (f"token {place} of the answer is {got.token}, must be {want.token}, and is not even "
                             f"among the {len(want.top)} likeliest")
            return place
        difference = abs(want.top[got.token] - got.logprob)
        verdict.furthest = max(verdict.furthest, difference)
        gap = abs(want.top[want.token] - want.top[got.token])
        if got.token != want.token and gap >= verdict.rounding:
            verdict.wrong = (f"token {place} of the answer is {got.token}, and must be {want.token}: llama-server "
                             f"alone holds it for likelier by {gap:.4f}, and rounding is below {verdict.rounding}")
            return place
        if difference >= verdict.rounding:
            verdict.wrong = (f"token {place} of the answer is {got.token}, as it may be, with a log probability that "
                             f"is off by {difference:.4f}: rounding is below {verdict.rounding}")
            return place
        if got.token != want.token:
            verdict.ties += 1
            return place
    return None


def judge(prompt, expected, said, is_complete, go_on, rounding):
    """expected, said: asking.Said of each token. go_on(prompt, count): what the plain llama-server says next."""
    verdict = Verdict(rounding)
    if len(said) > len(expected) or (is_complete and len(said) < len(expected)):
        verdict.wrong = f"{len(said)} tokens, {len(expected)} were asked for"
        return verdict
    begin = 0
    while True:
        parting = first_parting(expected, said[begin:], verdict)
        if verdict.wrong and begin:
            verdict.wrong += f" (counted from token {begin}, after a tie)"
        if verdict.wrong or parting is None:
            return verdict
        begin += parting + 1
        left = len(said) - begin
        if left == 0:
            return verdict
        expected = go_on(prompt + [one.token for one in said[:begin]], left)


def corrupted(said, expected, place, rounding):
    """The same answer, in which one token is the likeliest one that is no tie: the smallest mistake there is."""
    want = expected[place]
    rivals = sorted((gap, token) for token, gap in ((token, want.top[want.token] - one)
                                                    for token, one in want.top.items()) if gap >= rounding)
    if not rivals:
        raise ValueError("no token is far enough from the likeliest")
    out, wrong = list(said), copy.copy(said[place])
    wrong.token, wrong.logprob = rivals[0][1], want.top[rivals[0][1]]
    out[place] = wrong
    return out
