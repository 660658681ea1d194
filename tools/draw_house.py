"""Draws docs/pictures/house.svg from the real includes: layers, their rooms, who uses whom.

An arrow points from a room to one that it uses; arrows that follow from others are left out. Tests
and what only tests share are counted, but their includes draw no arrow.

`--check` fails when the picture is not the one of this tree.
"""

import sys
from collections import defaultdict
from xml.sax.saxutils import escape

import check_layers

PICTURE = check_layers.ROOT / "docs" / "pictures" / "house.svg"
Graph = dict[str, set[str]]

ROOM_WIDTH, ROOM_HEIGHT, GAP, MARGIN, TITLE = 132, 40, 22, 16, 22
INK, FAINT = "#212529", "#868e96"
COLOURS = ["#e7f5ff", "#ebfbee", "#fff9db", "#fff0f6", "#f3f0ff", "#e3fafc", "#fff4e6"]


def uses_between_rooms() -> Graph:
    graph: Graph = defaultdict(set)
    for path in check_layers.sources():
        if path.is_relative_to(check_layers.ROOT / "include") or check_layers.is_for_tests(path):
            continue
        room = check_layers.room_of(path)
        for include in check_layers.INCLUDE.findall(path.read_text()):
            used = check_layers.used_by(include)
            if used is not None and used != room:
                graph[room].add(used)
    return graph


def reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    rest = [start]
    while rest:
        for each in graph.get(rest.pop(), set()) - seen:
            seen.add(each)
            rest.append(each)
    return seen


def without_what_follows(graph: Graph) -> Graph:
    """The fewest arrows from which all others follow."""
    return {
        room: {
            used
            for used in all_used
            if not any(used in reachable(graph, other) for other in all_used - {used})
        }
        for room, all_used in graph.items()
    }


def depth(graph: Graph, room: str) -> int:
    return max((depth(graph, used) + 1 for used in graph.get(room, set())), default=0)


def of_layers(graph: Graph) -> Graph:
    layers: Graph = defaultdict(set)
    for room, all_used in graph.items():
        own = check_layers.layer_of(room)
        layers[own] |= {check_layers.layer_of(used) for used in all_used} - {own}
    return layers


def files_in(room: str) -> int:
    folder = "python/bindings" if room == "python" else f"src/{room}"
    return sum(1 for path in (check_layers.ROOT / folder).iterdir() if path.is_file())


def rooms_in(layer: str) -> list[str]:
    known = [*check_layers.MAY_USE, *sorted(check_layers.FOR_TESTS)]
    return [room for room in known if check_layers.layer_of(room) == layer]


class Box:
    def __init__(self, x: float, y: float, width: float, height: float) -> None:
        self.x, self.y, self.width, self.height = x, y, width, height

    def rectangle(self, fill: str, dashed: bool = False) -> str:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        return (
            f'<rect x="{self.x:.0f}" y="{self.y:.0f}" width="{self.width:.0f}" '
            f'height="{self.height:.0f}" rx="6" fill="{fill}" stroke="{FAINT}"{dash}/>'
        )

    def text(self, words: str, size: int, down: float, colour: str = INK) -> str:
        return (
            f'<text x="{self.x + 8:.0f}" y="{self.y + down:.0f}" font-size="{size}" '
            f'fill="{colour}">{escape(words)}</text>'
        )


class House:
    def __init__(self) -> None:
        self.rooms = uses_between_rooms()
        self.layers = of_layers(self.rooms)
        self.boxes: dict[str, Box] = {}
        self.width = self.height = 0.0
        self.place()

    def columns(self, layer: str) -> list[list[str]]:
        """Rooms by how much of their own layer they stand on; those of tests come last."""
        inside = {
            room: {used for used in all_used if check_layers.layer_of(used) == layer}
            for room, all_used in self.rooms.items()
        }
        columns: dict[int, list[str]] = defaultdict(list)
        for room in rooms_in(layer):
            columns[99 if room in check_layers.FOR_TESTS else depth(inside, room)].append(room)
        return [columns[key] for key in sorted(columns)]

    def size_of(self, layer: str) -> tuple[float, float]:
        columns = self.columns(layer)
        tallest = max(map(len, columns))
        width = len(columns) * (ROOM_WIDTH + GAP) + GAP
        return width, TITLE + tallest * (ROOM_HEIGHT + 10) + 8

    def place(self) -> None:
        rows: dict[int, list[str]] = defaultdict(list)
        for layer in dict.fromkeys(map(check_layers.layer_of, check_layers.MAY_USE)):
            rows[depth(self.layers, layer)].append(layer)
        y = float(MARGIN)
        for key in sorted(rows, reverse=True):
            x = float(MARGIN)
            for layer in rows[key]:
                width, height = self.size_of(layer)
                self.boxes[layer] = Box(x, y, width, height)
                self.place_rooms(layer)
                x += width + GAP
            self.width = max(self.width, x)
            y += max(self.boxes[layer].height for layer in rows[key]) + 2 * GAP
        self.height = y + 2 * MARGIN

    def place_rooms(self, layer: str) -> None:
        box = self.boxes[layer]
        for column, rooms in enumerate(self.columns(layer)):
            for row, room in enumerate(rooms):
                self.boxes[f"{room} room"] = Box(
                    box.x + GAP + column * (ROOM_WIDTH + GAP),
                    box.y + TITLE + row * (ROOM_HEIGHT + 10),
                    ROOM_WIDTH,
                    ROOM_HEIGHT,
                )

    def arrow(self, start: tuple[float, float], end: tuple[float, float], colour: str) -> str:
        return (
            f'<line x1="{start[0]:.0f}" y1="{start[1]:.0f}" x2="{end[0]:.0f}" y2="{end[1]:.0f}" '
            f'stroke="{colour}" stroke-width="1.3" marker-end="url(#tip)"/>'
        )

    def arrows_between_layers(self) -> list[str]:
        drawn = []
        for layer, all_used in sorted(without_what_follows(self.layers).items()):
            above = self.boxes[layer]
            for number, used in enumerate(sorted(all_used)):
                below = self.boxes[used]
                x = above.x + 30 + 40 * number
                target = min(max(x, below.x + 12), below.x + below.width - 12)
                drawn.append(self.arrow((x, above.y + above.height), (target, below.y), INK))
        return drawn

    def arrows_between_rooms(self) -> list[str]:
        drawn = []
        for room, all_used in sorted(without_what_follows(self.rooms).items()):
            for used in sorted(all_used):
                if check_layers.layer_of(used) != check_layers.layer_of(room) or used not in (
                    check_layers.MAY_USE
                ):
                    continue
                start, end = self.boxes[f"{room} room"], self.boxes[f"{used} room"]
                drawn.append(
                    self.arrow(
                        (start.x, start.y + start.height / 2),
                        (end.x + end.width, end.y + end.height / 2),
                        FAINT,
                    )
                )
        return drawn

    def draw_layer(self, number: int, layer: str) -> list[str]:
        box = self.boxes[layer]
        return [box.rectangle(COLOURS[number % len(COLOURS)]), box.text(layer, 14, 16)]

    def draw_rooms(self, layer: str) -> list[str]:
        drawn = []
        for room in rooms_in(layer):
            place = self.boxes[f"{room} room"]
            name = room.partition("/")[2] or room
            drawn.append(place.rectangle("#ffffff", dashed=room in check_layers.FOR_TESTS))
            drawn.append(place.text(name, 13, 17))
            drawn.append(place.text(f"{files_in(room)} files", 11, 33, FAINT))
        return drawn

    def svg(self) -> str:
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:.0f} '
            f'{self.height:.0f}" width="{self.width:.0f}" height="{self.height:.0f}" '
            'font-family="sans-serif">',
            "<title>The rooms of src/: an arrow points to what is used</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker>'
            "</defs>",
            f'<rect width="{self.width:.0f}" height="{self.height:.0f}" fill="#ffffff"/>',
        ]
        layers = [name for name in self.boxes if " " not in name]
        for number, layer in enumerate(layers):
            lines += self.draw_layer(number, layer)
        # Behind the rooms, so that their names stay readable.
        lines += self.arrows_between_layers() + self.arrows_between_rooms()
        for layer in layers:
            lines += self.draw_rooms(layer)
        legend = Box(MARGIN, self.height - 2 * MARGIN, 0, 0)
        lines.append(
            legend.text(
                "An arrow points to what is used; dashed: only tests use it.", 12, 14, FAINT
            )
        )
        return "\n".join([*lines, "</svg>", ""])


def main() -> int:
    picture = House().svg()
    if "--check" not in sys.argv:
        PICTURE.write_text(picture)
        return 0
    if PICTURE.exists() and PICTURE.read_text() == picture:
        return 0
    print(
        "docs/pictures/house.svg is not the house that stands: run tools/draw_house.py",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
