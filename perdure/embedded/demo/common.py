"""Words that say nothing about what a question is about."""

_WORDS = """
    a about after again all also am an and another answer answered any anything appear appears are as ask at
    be because been before below best between biggest both brief briefly but by call called can cannot code
    contain containing contains content contents could define defined defines describe described describes
    did different directory do document documented does doing done each either else entire every exactly
    exist exists explain explained file filename filenames files find first folder folders for from further
    get give given gives go got had happen happens has have having he help her here him his how i if in
    inside into is it its itself just keep know large largest last let like line lines list located location
    longest look made main make makes many matter may me mean means mention mentioned mentions might more
    most much must my name named names need no nor not now number occurrence occurrences of often on once one
    only onto or order other our out over overview own part path paths please project put puts question quick
    quote read reply repo repository respond said same say says see sentence set sets she short shortest
    shortly should show shows smallest so some something stand stands such summarise summarize summary tell
    text than thank thanks that the their them then there these they thing things this those through time
    times to too tree two under until up upon us use used uses using very want was way we well were what when
    where whether which while who whole whom whose why will with within word words work working works would
    write written yes you your
"""
COMMON = frozenset(_WORDS.split())
"""In lower case."""
