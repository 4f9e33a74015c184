//! Real servers and bad networks, for the test binaries that name this module.

// Each binary uses its part.
#![allow(dead_code)]

pub mod etcd;
pub mod postgres;
pub mod proxy;

/// A free address below the kernel's range for ports of its own choice: nobody takes it by chance while a process that is to come
/// back to it is down.
pub fn free_address() -> std::net::SocketAddr {
    loop {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], rand::random_range(12_000..32_000)));
        if std::net::TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
