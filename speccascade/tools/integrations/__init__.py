"""Methods of this package inside other projects' tools."""
