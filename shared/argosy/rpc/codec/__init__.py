"""Records ↔ protobuf messages, one module per area. A field that is unset gets its documented default here."""
