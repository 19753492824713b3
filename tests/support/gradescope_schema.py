"""Gradescope's results.json as a JSON schema, written from its documentation, and what checks it.

Source: gradescope-autograders.readthedocs.io, "Autograder Specifications", section "Output format".
Of JSON Schema what this schema uses is checked: type, enum, required, items, properties,
additionalProperties, minimum.
"""

VISIBILITY = {"enum": ["hidden", "after_due_date", "after_published", "visible"]}
FORMAT = {"enum": ["text", "html", "simple_format", "md", "ansi"]}
TEXT, NUMBER, ANYTHING = {"type": "string"}, {"type": "number"}, {"type": "object"}
TEST = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "score": NUMBER, "max_score": {"type": "number", "minimum": 0},
        "status": {"enum": ["passed", "failed"]}, "name": TEXT, "name_format": FORMAT,
        "number": TEXT, "output": TEXT, "output_format": FORMAT,
        "tags": {"type": "array", "items": TEXT}, "visibility": VISIBILITY,
        "extra_data": ANYTHING,
    },
}  # fmt: skip
LEADER = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "value"],
    "properties": {
        "name": TEXT, "value": {"type": ["number", "string"]}, "order": {"enum": ["asc", "desc"]},
    },
}  # fmt: skip
RESULTS = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "score": NUMBER, "execution_time": NUMBER, "output": TEXT, "output_format": FORMAT,
        "test_output_format": FORMAT, "test_name_format": FORMAT, "visibility": VISIBILITY,
        "stdout_visibility": VISIBILITY, "extra_data": ANYTHING,
        "tests": {"type": "array", "items": TEST},
        "leaderboard": {"type": "array", "items": LEADER},
    },
}  # fmt: skip
_TYPES = {"object": dict, "array": list, "string": str, "number": (int, float)}


def wrong_with(data, schema=RESULTS, where="results"):
    """What breaks the schema, in words; "" for nothing. The top has a score, or each test has."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(data, _TYPES[kind]) for kind in kinds):
        return f"{where} is {type(data).__name__}, not {kinds}"
    if isinstance(data, bool) or ("enum" in schema and data not in schema["enum"]):
        return f"{where} is {data!r}"
    if data != data or data in (float("inf"), float("-inf")):  # NaN is no JSON
        return f"{where} is not a number"
    if "minimum" in schema and data < schema["minimum"]:
        return f"{where} is below {schema['minimum']}"
    if isinstance(data, list):
        found = (wrong_with(row, schema["items"], f"{where}[{n}]") for n, row in enumerate(data))
        return next(filter(None, found), "")
    if isinstance(data, dict) and "properties" in schema:
        known = schema["properties"]
        strange = set(data) - set(known)
        lacking = set(schema.get("required", ())) - set(data)
        if strange or lacking:
            return f"{where}: unknown {strange}, lacking {lacking}"
        found = (wrong_with(value, known[key], f"{where}.{key}") for key, value in data.items())
        wrong = next(filter(None, found), "")
        if schema is RESULTS and not wrong and "score" not in data:
            scored = data.get("tests") and all("score" in test for test in data["tests"])
            return "" if scored else "no score"
        return wrong
    return ""
