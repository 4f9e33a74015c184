//! Messages that were encoded before anybody asked for them, and the manager's service with such answers in the places of tables.
//!
//! A table is encoded once for all who read it. On the wire nothing differs.

#[allow(missing_docs, clippy::unwrap_used)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/ready/shardmanager.v1.rs"));
}

pub use generated::shard_manager_server;
use prost::DecodeError;
use prost::bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType, encode_key, encode_varint, skip_field};

/// The bytes of one message, in two parts that follow each other. Cloning it copies none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    head: Bytes,
    rest: Bytes,
}

impl Message {
    /// A whole message.
    pub fn new(encoded: Bytes) -> Message {
        Message { head: Bytes::new(), rest: encoded }
    }

    /// A message that has nothing but the message `encoded` in the field `number`.
    pub fn within(number: u32, encoded: Bytes) -> Message {
        let mut head = Vec::with_capacity(16);
        encode_key(number, WireType::LengthDelimited, &mut head);
        encode_varint(encoded.len() as u64, &mut head);
        Message { head: head.into(), rest: encoded }
    }
}

/// Only for sending: what is decoded into it is checked, and left out.
impl prost::Message for Message {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.head);
        buffer.put_slice(&self.rest);
    }

    fn merge_field(
        &mut self,
        number: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        skip_field(wire_type, number, buffer, context)
    }

    fn encoded_len(&self) -> usize {
        self.head.len() + self.rest.len()
    }

    fn clear(&mut self) {
        *self = Message::default();
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::rpc;

    #[test]
    fn ready_bytes_are_what_their_message_encodes_to() {
        let table = rpc::RoutingTable { number_of_shards: 300, owner: vec![7; 300], ..rpc::RoutingTable::default() };
        let encoded = Bytes::from(table.encode_to_vec());
        assert_eq!(Message::new(encoded.clone()).encode_to_vec(), encoded);
        let change = rpc::watch_routing_table_response::Change::Full(table);
        let watched = rpc::WatchRoutingTableResponse { change: Some(change) };
        assert_eq!(Message::within(1, encoded).encode_to_vec(), watched.encode_to_vec());
    }
}
