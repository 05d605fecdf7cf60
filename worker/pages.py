"""One page of ListObjectsV2, read some twenty times faster than botocore does it.

botocore makes a dictionary and a datetime of each of a page's 1,000 objects: 170 ms of interpreter time a page, 6,000
keys a second however many threads wait for S3. Here a handler takes the objects out of the answer before botocore
parses the rest. What needs care stays botocore's: signing, errors, and the url encoding in which odd keys travel,
which it asks for and undoes. If botocore ever stops calling the handler, listing is slow again and as correct.
"""

from __future__ import annotations

import threading
import xml.etree.ElementTree as ET
from typing import Any

from schema.assignment import PrepareAssignment
from schema.layout import Location
from schema.shardfile import Address
from worker.listing import Page
from worker.patience import patiently

_EVENT = "before-parse.s3.ListObjectsV2"
_WANTED = frozenset({"Key", "Size", "ETag"})


def list_page(client: Any, assignment: PrepareAssignment, after: str, stop: threading.Event) -> Page:
    """The page of the assignment's prefix after a key."""
    client.meta.events.register(_EVENT, _take_objects, unique_id="reembed-take-objects")
    arguments: dict[str, str] = {"Bucket": assignment.source_bucket, "Prefix": assignment.prefix or ""}
    if after:
        arguments["StartAfter"] = after
    place = Location(assignment.source_bucket, assignment.prefix or "").uri
    answer = patiently(lambda: client.list_objects_v2(**arguments), stop, f"list {place}")
    contents = answer.get("Contents", [])
    keys: list[str] = [item["Key"] for item in contents]
    found = [Address(item["Key"].encode(), int(item["Size"]), item.get("ETag", "").strip('"')) for item in contents]
    return Page(keys, found, bool(answer["IsTruncated"]))


def _take_objects(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Move the objects from the body into the parsed answer, which botocore adds to its own."""
    if response_dict["status_code"] != 200:
        return
    try:
        root = ET.fromstring(response_dict["body"])
    except ET.ParseError:
        return  # botocore says it better
    contents: list[dict[str, str]] = []
    others: list[ET.Element] = []
    for element in root:
        if _name(element) == "Contents":
            fields = {_name(field): field.text or "" for field in element}
            contents.append({name: fields[name] for name in _WANTED if name in fields})
        else:
            others.append(element)
    if contents:
        root[:] = others
        response_dict["body"] = ET.tostring(root)
        customized_response_dict["Contents"] = contents


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]
