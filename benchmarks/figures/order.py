"""I → S against I′ → S → I on the same image: does a large background overwhelm a small object?

The paper holds that votes alone favor a large uniform background, because many like tokens vote
for each other, and that dropping similar tokens first mends it. The two orders run at the same
cost here. Of --images images, those are drawn on which I′ → S → I saves most of the unpruned
model's answer: examples, chosen for the claim. On how many of all of them only one order keeps the
answer stands in the figure as well. Expected by the claim: more often I′ → S → I.
Command: python -m benchmarks.figures.order --cost 0.4 --out docs/figure-order.svg
"""

from __future__ import annotations

from benchmarks.figures.figure import Subject, arguments, load_subject, save
from zerotprune import Schedule, ZeroTPrune, gmacs, schedule_for
from zerotprune.show.layout import draw_strips
from zerotprune.show.scene import Scene
from zerotprune.show.story import Story, tell

ORDERS = (
    ("I → S", ZeroTPrune(order="i-s", form="paper")),
    ("I′ → S → I", ZeroTPrune(form="paper")),
)


def tell_all(subject: Subject, schedule: Schedule) -> list[Story]:
    stories: list[Story] = []
    for part in subject.images.split(32):
        stories += tell(subject.model, part, schedule)
    return stories


def kept_share(story: Story) -> float:
    """Return the probability that the pruned model gives to the unpruned model's answer."""
    answer = story.before[0].label
    return next((guess.share for guess in story.after if guess.label == answer), 0.0)


def scene_of(subject: Subject, cost: float, rows: int) -> Scene:
    both = [
        tell_all(subject, schedule_for(subject.model, cost=cost, method=method))
        for _, method in ORDERS
    ]
    count = len(subject.images)
    same = [
        [story.before[0].label == story.after[0].label for story in stories] for stories in both
    ]
    only = [sum(mine and not other for mine, other in zip(same[at], same[1 - at], strict=True))
            for at in (0, 1)]  # fmt: skip
    gains = [kept_share(after) - kept_share(first) for first, after in zip(*both, strict=True)]
    best = sorted(range(count), key=gains.__getitem__, reverse=True)[:rows]
    about = f"{cost * gmacs(subject.model):.3f} GMACs both"
    if count > rows:
        about += f"; of {count} images only I → S keeps the answer on {only[0]}"
        about += f", only I′ → S → I on {only[1]}"
    print(about)
    print("drawn:", *(subject.captions[at] for at in best))
    images, stories, captions = [], [], []
    for at in best:
        for order, (name, _) in enumerate(ORDERS):
            images.append(subject.image(at))
            stories.append(both[order][at])
            captions.append(name)
    return Scene(f"Which order? On {subject.name}", about, images, stories, captions)


def main() -> None:
    parser = arguments(__doc__, "figure-order.svg", 400)
    parser.add_argument("--cost", type=float, default=0.4, help="share of the unpruned one's")
    parser.add_argument("--rows", type=int, default=2, help="images that are drawn")
    chosen = parser.parse_args()
    save(draw_strips(scene_of(load_subject(chosen), chosen.cost, chosen.rows)), chosen.out)


if __name__ == "__main__":
    main()
