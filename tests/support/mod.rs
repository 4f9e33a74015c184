//! Real servers and bad networks, for the test binaries that name this module.

// Each binary uses its part.
#![allow(dead_code)]

pub mod etcd;
pub mod postgres;
pub mod proxy;

/// An address that is this process's own until it ends: below the kernel's range for ports of its own choice, so that nobody takes it by
/// chance while a process that is to come back to it is down, and never given to two, in whichever processes of a test run they are.
/// What says so to the others is the UDP port of the same number, which the kernel frees however this process ends.
pub fn free_address() -> std::net::SocketAddr {
    static OURS: std::sync::Mutex<Vec<std::net::UdpSocket>> = std::sync::Mutex::new(Vec::new());
    loop {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], rand::random_range(12_000..32_000)));
        let Ok(mark) = std::net::UdpSocket::bind(address) else { continue };
        // Somebody may be there who does not ask.
        if std::net::TcpListener::bind(address).is_ok() {
            OURS.lock().unwrap().push(mark);
            return address;
        }
    }
}
